"""The studio: a local web page that shows runs in three dimensions and lets one change them."""

#!/bin/sh
# Debian's chromium for the tests of the studio, where it is missing and can be installed; where it cannot, those tests are skipped and say so.
set -u
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "no chromium, and no apt-get as root to install it: the browser tests will be skipped"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if ! { timeout 60 apt-get update -qq && timeout 150 apt-get install -y -qq --no-install-recommends chromium; } >"$log" 2>&1; then
    tail -n 3 "$log"
    echo "chromium could not be installed: the browser tests will be skipped"
fi
rm -f "$log"

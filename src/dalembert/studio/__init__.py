"""The studio: a page on this machine where one picks a system and a method, moves a slider and sees the body move.

Python makes data: a catalogue of controls, and of every run a `Show` of parts that move, plots and claims. The page (page/) knows
shapes, tracks and plots, never a model by name, so that the same page plays live and, with a show inside, offline.
"""

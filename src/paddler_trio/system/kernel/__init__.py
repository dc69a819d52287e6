"""What only Linux offers, behind a function each; elsewhere the same function goes a portable way.

A function asks ``sys.platform`` when it is called, so that its tests can switch Linux off.
"""

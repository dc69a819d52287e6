"""What only Linux offers lies behind a function each, which elsewhere goes a portable way.

A function asks ``sys.platform`` when it is called, so that its tests can switch Linux off.
"""

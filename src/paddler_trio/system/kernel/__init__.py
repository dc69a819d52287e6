"""The functions here use what only Linux offers, and go a portable way elsewhere.

A function asks ``sys.platform`` when it is called, so that its tests can switch Linux off.
"""

"""Functions of the kernel that only Linux offers; elsewhere each goes a portable way.

A function asks ``sys.platform`` when it is called, so that its tests can switch Linux off.
"""

"""Everything that is there only to be fast. Delete this folder and Birl still trains, slower.

The rest of the package reaches it through birl/speed.py alone.
"""

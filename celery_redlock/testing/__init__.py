"""For tests, yours and ours: real servers that can be killed and frozen, and a network that can be cut.

Nothing here is imported by the lock itself.
"""

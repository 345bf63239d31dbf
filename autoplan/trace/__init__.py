"""From a plain module to an ``OpGraph``.

``graph`` is free of torch and is what the rest of autoplan sees; ``capture`` makes it.
"""

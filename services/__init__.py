"""Weir's services. They never import each other; they meet in ``protocol``, through streams."""

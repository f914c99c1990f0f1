"""What can be asked, route by route: answers, vectors, facts, the cache, ticks, the page."""

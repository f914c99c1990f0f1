"""The routes: answers, vectors, facts, the cache, ticks, the page."""

"""For the tests of programs that use Outrider: a pytest plugin that records provider traffic and plays it."""

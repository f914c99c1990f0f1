"""The models the package can find, fetch or make: references, shapes, writer, registry."""

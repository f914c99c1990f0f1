"""One report format for all: rounds in turn, tables, plots, and the machine they come from."""

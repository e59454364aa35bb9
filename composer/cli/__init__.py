"""The command line: ``composer [options] script [arguments]`` starts one process per device."""

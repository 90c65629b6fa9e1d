"""Where what a person has written comes in: read, checked, and made into studies.

    files     experiments and --set, as tables; what there is. Imports nothing that takes time
    trained   which model of a run is meant. Imports nothing that takes time either
    plugins   a person's own code: where it is, and whether it may be run
    own       whether it is what it should be
    plugged   the same, run
    schema    one model for every table, with types, ranges and defaults
    build     studies and plans of what was checked
    sweeps    the same for a sweep, whose studies hold many settings
    identity  what makes a value that was made in Python the same again
    values    studies and plans of such values

What cannot be used is refused here, in one line, with `BadInput`. Inside, the types are trusted.
"""

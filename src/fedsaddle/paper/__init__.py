"""The paper whole: its figures and tables, run again, and what it says of them, judged.

    grids       the settings that the appendix chose from; as many of each algorithm as of any other
    forms       how large everything is: the paper's sizes, or a few minutes on two cores
    trials      the runs and sweeps behind the exhibits, in their order
    winners     what a trial runs: the settings that the sweep before it has chosen
    pace        how long what is left takes
    evidence    what trials have found, seed by seed
    claims      what the paper says, each with a rule fixed beforehand that decides about it
    exhibits    figures, tables and panels: which trials, which claims, how they are drawn
    drawing     the pictures
    page        all of it as one page

What runs them is `app.reproduce`. See docs/reproduce.md.
"""

"""What the commands do, without a terminal: to be called from Python too.

    run       run an experiment or a sweep, in a folder of its own
    sitting   trials one after another, in as many sittings as it takes
    board     all algorithms on all tasks and fleets
    reproduce the paper's trials, and its page
    watch     a run's report, served while the run goes on
    python    `fs.run` and `fs.sweep`: the same for experiments by name and for values made in Python
    outcomes  a run's folder as an outcome, and an outcome as a folder or a report
    doctor    what is wrong or slow here
    results   what a run or a sweep has come to: its report, and whether something came to nothing
    replay    a run's history, played again in the simulator
    rescore   the last points of a run, judged otherwise; nothing is trained
    models    what was trained, as a module, as scores of new rows, as a file for others, as pictures
    new       the first files of an algorithm, a problem or an experiment of one's own
    deploy    the same experiment on devices, or as one of them

What a person should hear goes to a `Show`; nothing here prints, asks or draws.
"""

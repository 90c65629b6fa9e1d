"""The board of the field: all algorithms on all tasks and fleets, after the same tuning, judged alike.

    published   which settings each algorithm may try, and where that comes from
    tasks       what is played for, on which fleets, and how large everything is
    costs       what a round of an algorithm sends and waits for, and so how many rounds a budget buys
    matches     the sweeps and runs of one algorithm at one task on one fleet
    scores      what a seed is worth where its floats, round trips or simulated seconds are used up
    standings   who is told apart from whom, and which ranks that leaves to each
    page        all of it as a page of Markdown, and a table of numbers
    html        the same as one HTML file with filters, which needs no other

What runs it is `app.board`. See docs/board.md.
"""

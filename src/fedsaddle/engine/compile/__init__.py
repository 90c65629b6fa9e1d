"""The compiler: a phase is traced once, made shorter, and replayed, with the same bits and without Python.

cuts          how a phase is handed over: whole, or where its walks make a step (`work`)
trace         the operations that it does, below vmap and grad: a `program`
passes        the program made shorter, by passes under their textbook names
players       what plays it: TorchScript's interpreter, or else torch.fx
record        all of that: a tape
tapes         on a CPU: which tapes there are, whether they are trusted, and the threads that play them
cuda_graphs   on a GPU: tapes captured as graphs
"""

import os

# Tests run side by side: one thread each, here and in the processes they start.
os.environ["OMP_NUM_THREADS"] = "1"

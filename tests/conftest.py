import os

# Tests run side by side: one thread each, here and in the processes they start, whatever is set outside.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

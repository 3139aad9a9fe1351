"""One thread for every test: the models are small, and two workers share the cores."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import torch

torch.set_num_threads(1)

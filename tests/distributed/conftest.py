import logging
import os

import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
torch.set_num_threads(1)
logging.getLogger("torch.distributed").setLevel(logging.ERROR)

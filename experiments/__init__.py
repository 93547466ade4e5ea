"""The commands. TensorFlow reads these settings once, when it is first imported."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # start-up noise of libraries that we do not use
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # twice the speed on CPUs without AVX-512
# A session has threads of its own: clients in this process train with one thread each.
os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")

# hotloop with its training part, for the CPU or, with `--build-arg DEVICE=cuda`, for NVIDIA GPUs.
FROM python:3.11-slim

# The updates of a training are compiled on first use.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

# Torch comes first: it is large and changes rarely. Its wheels for CUDA contain CUDA's libraries.
ARG DEVICE=cpu
RUN case "$DEVICE" in \
        cpu) pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu ;; \
        cuda) pip install --no-cache-dir torch ;; \
        *) echo "expected DEVICE=cpu or DEVICE=cuda, got $DEVICE" >&2; exit 1 ;; \
    esac

ARG EXTRAS=train,mujoco,tensorboard
COPY pyproject.toml setup.py README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir "/source[$EXTRAS]" && rm -rf /source

# The driver of the host, by NVIDIA's container toolkit. It has no effect on the CPU.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --create-home hotloop && install --directory --owner=hotloop /runs
USER hotloop
WORKDIR /runs
ENTRYPOINT ["hotloop"]
CMD ["--help"]

# A balancer or an agent, by the command:
#
#   docker build --tag paddler-trio:latest .
#   docker run --read-only --tmpfs /tmp --publish 127.0.0.1:8061:8061 paddler-trio:latest
#   docker run --read-only --tmpfs /tmp --volume /models:/models:ro paddler-trio:latest agent --help
#
# Volumes: /var/lib/paddler-trio (state), /var/cache/paddler-trio (models that were downloaded).
# SETUP chooses what models are computed on. For Vulkan:
#
#   docker build --build-arg SETUP=--vulkan --build-arg RUN_PACKAGES="libvulkan1 mesa-vulkan-drivers" \
#     --build-arg BUILD_PACKAGES="glslc libvulkan-dev spirv-headers" --tag paddler-trio:vulkan .
#   docker run --device /dev/dri ...
#
# For CUDA, build on an image that has its toolkit and Python (PYTHON_IMAGE, SETUP=--cuda), and run
# with --gpus all. podman and buildah build it with `--format docker`: there is no HEALTHCHECK in the
# OCI's format.
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG SETUP=--portable
ARG BUILD_PACKAGES=
# What compiles is in no image that runs: its version is that of the day.
# hadolint ignore=DL3008,SC2086
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential cmake ${BUILD_PACKAGES}
WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN python -m venv /opt/paddler-trio \
    && /opt/paddler-trio/bin/pip install --no-cache-dir ".[discovery]" \
    && /opt/paddler-trio/bin/paddler-trio setup "${SETUP}" \
    && /opt/paddler-trio/bin/pip uninstall --yes pip

FROM ${PYTHON_IMAGE}
ARG RUN_PACKAGES=
# hadolint ignore=DL3008,SC2086
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 ${RUN_PACKAGES} \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=65532 --group=65532 --mode=0700 \
       /var/lib/paddler-trio /var/cache/paddler-trio
COPY --from=build /opt/paddler-trio /opt/paddler-trio
ENV PATH=/opt/paddler-trio/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/cache/paddler-trio \
    XDG_CACHE_HOME=/var/cache \
    HF_HOME=/var/cache/paddler-trio/huggingface
USER 65532:65532
WORKDIR /var/lib/paddler-trio
VOLUME ["/var/lib/paddler-trio", "/var/cache/paddler-trio"]
EXPOSE 8060 8061
# SIGTERM drains; give it more time than --drain-timeout: `docker stop --time 60`.
STOPSIGNAL SIGTERM
# Of a balancer. An agent with --metrics-addr has its own in compose.yaml.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request as http; http.urlopen('http://127.0.0.1:8061/livez', timeout=4)"]
ENTRYPOINT ["paddler-trio"]
CMD ["balancer", "--inference-addr", "0.0.0.0:8061", "--state-database", "file:///var/lib/paddler-trio/state.json"]

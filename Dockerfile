# Birl with the versions that it is tested with. docs/usage.md says how to use the image.
#   docker build --tag birl .
#   docker build --tag birl --build-arg EXTRAS='[atari,envpool]' .
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml MANIFEST.in README.md LICENSE ./
COPY birl birl
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
ARG EXTRAS=""
COPY constraints.txt /wheels/
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt "$(echo /wheels/birl-*.whl)${EXTRAS}" \
    && useradd --create-home --uid 1000 birl \
    && install --directory --owner birl --group birl /data
# Runs, the secret that signs them and compiled programs stay together in the volume.
ENV BIRL_DATA_DIR=/data/.birl/data BIRL_CACHE_DIR=/data/.birl/cache MPLCONFIGDIR=/tmp/matplotlib
USER 1000
WORKDIR /data
ENTRYPOINT ["birl"]
CMD ["--help"]

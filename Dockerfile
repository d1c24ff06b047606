# docker build -t lpwm . && docker run --rm -v "$PWD/runs:/work/runs" lpwm demo
# PIP_OPTIONS chooses the build of torch, e.g. --build-arg PIP_OPTIONS="--extra-index-url …" for one without CUDA.
FROM python:3.12-slim
ARG PIP_OPTIONS=""
WORKDIR /work
COPY pyproject.toml README.md LICENSE ./
COPY lpwm ./lpwm
RUN pip install --no-cache-dir $PIP_OPTIONS .
ENTRYPOINT ["lpwm"]
CMD ["doctor"]

# syntax=docker/dockerfile:1
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.en.md LICENSE ./
COPY miniclaw miniclaw
RUN python -m venv /opt/miniclaw && /opt/miniclaw/bin/pip install --no-cache-dir ".[redis]"

FROM python:3.12-slim
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin miniclaw \
    && install -d -o miniclaw -g miniclaw -m 0700 /data
COPY --from=build /opt/miniclaw /opt/miniclaw
ENV PATH=/opt/miniclaw/bin:$PATH MINICLAW_HOME=/data PYTHONUNBUFFERED=1
USER 10001
VOLUME /data
EXPOSE 8080 8765
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
STOPSIGNAL SIGTERM
CMD ["miniclaw", "serve", "--host", "0.0.0.0", "--port", "8080", "--gateway-port", "8765"]

# Control plane, fake engines and load generator:  docker build -t headrace .
# BASE is any image with Python 3.11 or newer as python3, and venv.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
RUN python3 -m venv /opt/headrace
WORKDIR /src
# Dependencies first: a change of the code alone does not fetch them again.
COPY pyproject.toml .
RUN python3 -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > requirements.txt \
 && /opt/headrace/bin/pip install --no-cache-dir -r requirements.txt
COPY . .
RUN /opt/headrace/bin/pip install --no-cache-dir --no-deps .

FROM ${BASE}
RUN useradd --system --uid 10001 headrace && install -d -o headrace /var/lib/headrace /certs
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1
USER headrace
ENTRYPOINT ["headrace"]

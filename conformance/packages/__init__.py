"""What people install: the wheel, the OCI image, the Helm chart, the systemd unit. Each is built and then used."""

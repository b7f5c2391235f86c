module example.com/os/components

go 1.26.6

tool github.com/opencontainers/runc/cmd/runc

require (
	github.com/opencontainers/runc v1.5.2 // indirect
	golang.org/x/net v0.59.0 // indirect
)

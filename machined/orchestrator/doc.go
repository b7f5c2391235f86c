// Package orchestrator runs the commands of the orchestrator, each in a process of its own with the
// user that the command needs. The package comment of the program lists the commands.
package orchestrator

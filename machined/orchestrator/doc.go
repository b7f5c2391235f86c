// Package orchestrator runs the commands of the program orchestrator. Each command runs in a
// process of its own, with the user that the command needs. The package comment of the program
// lists the commands.
package orchestrator

// Command orlopctl is the operator's tool for Orlop OS machines: it generates keys and
// configurations, applies them, shows the state of machines, and starts local machines in QEMU.
//
// It uses only the gRPC API of the machines. Its file ~/.orlop/config holds the known machines
// (contexts). Each file of this package holds the commands of one noun; a command is a function of
// the streams (iostreams) and of the connector (connect). The other packages below orlopctl hold
// the work that does not belong to one command.
//
// It holds no policy: pkg/config and the machine validate configurations, and apid on the machine
// authorizes calls.
package main

import (
	"io"
	"os"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run runs the program and returns the exit status, without ending the process.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return newTool(&iostreams.Streams{In: stdin, Out: stdout, Err: stderr}).run(args)
}

func (t *tool) run(args []string) int {
	t.args = args
	root := t.rootCommand()
	root.SetArgs(args)
	err := root.Execute()
	if err != nil && !t.started {
		// Cobra rejected the command line before a command started.
		hint := "see `orlopctl --help`"
		if here := elsewhere(err); here != "" {
			hint = here
		}
		err = &exit.Error{Code: exit.Usage, Err: err, Hint: hint}
	}
	return t.ios.Report(err)
}

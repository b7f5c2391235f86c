// Command orlopctl is the operator's tool for Orlop OS machines. It generates keys and
// configurations, applies configurations, shows the state of machines, and starts local machines in
// QEMU.
//
// The tool uses only the gRPC API of the machines. Its file ~/.orlop/config holds the known
// machines (contexts). Each file of this package holds the commands about one subject. The function
// of a command takes the streams (iostreams) and the connector (connect). The other packages below
// orlopctl hold work that several commands share, or that has a subject of its own.
//
// The tool holds no policy: pkg/config and the machine validate configurations, and apid on the
// machine authorizes calls.
package main

import (
	"errors"
	"io"
	"os"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run runs the program with these arguments and returns the exit status. It does not end the
// process.
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
	if errors.Is(err, connect.ErrRecorded) {
		return exit.OK // `orlopctl approval request` has the call
	}
	return t.ios.Report(err)
}

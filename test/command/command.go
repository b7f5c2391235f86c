// Package command contains the main function that the measuring programs below test share.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Main parses the arguments and calls run. An interrupt or SIGTERM ends the context of run. Main
// prints an error of parse or run, and then exits with status 1.
func Main[Options any](name string, parse func(args []string) (Options, error), run func(context.Context, Options) error) {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, o)
		stop()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Line returns a command with its arguments, quoted for a shell. Reports show this line.
func Line(command string, args []string) string {
	for _, a := range args {
		if a == "" || strings.ContainsAny(a, " \t\n'\"\\$`|&;()<>*?[]#~!{}") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		command += " " + a
	}
	return command
}

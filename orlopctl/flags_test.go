package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/orlop-os/orlop/orlopctl/iostreams"
)

// zeroFlags are the flags that accept zero, because zero has a meaning of its own for them.
var zeroFlags = []string{
	"orlopctl audit list --after", "orlopctl cat --offset", "orlopctl cluster create --workers", "orlopctl events --after",
	"orlopctl trust rotate-ca --hold",
}

// TestNumericFlags checks that each flag for a number or a duration rejects negative values, and
// that only zeroFlags accept zero. In a request, zero usually means the default. So a command that
// accepted zero would silently use the default instead.
func TestNumericFlags(t *testing.T) {
	var zero []string
	checked := 0
	check := func(c *cobra.Command, f *pflag.Flag) {
		if kind := f.Value.Type(); kind != "duration" && !strings.HasPrefix(strings.TrimPrefix(kind, "u"), "int") && !strings.HasPrefix(kind, "float") {
			return
		}
		checked++
		name := c.CommandPath() + " --" + f.Name
		if f.Value.Set("-1") == nil || f.Value.Set("-1s") == nil {
			t.Errorf("%s accepts a negative value", name)
		}
		if f.Value.Set("0") == nil {
			zero = append(zero, name)
		}
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !c.HasParent() || c.Root().PersistentFlags().Lookup(f.Name) != f {
				check(c, f)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newTool(&iostreams.Streams{}).rootCommand())
	slices.Sort(zero)
	if !slices.Equal(zero, zeroFlags) {
		t.Errorf("these flags accept zero:\n%s\nwant\n%s", strings.Join(zero, "\n"), strings.Join(zeroFlags, "\n"))
	}
	if checked < 20 {
		t.Errorf("the test found only %d flags for numbers and durations", checked)
	}
}

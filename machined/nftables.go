package main

import (
	"context"
	"errors"
	"strings"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// ruleTable is a table of the kernel's packet rules: topic "nftables".
type ruleTable struct {
	Table string `json:"table"` // its family and name: "ip kube-proxy"
	Rules string `json:"rules"` // its sets, maps and chains, in nft's own form
	// whether it is longer than is shown; then its end is there, or nothing
	Cut bool `json:"cut,omitempty"`
}

// maxRules bounds what is told of all tables, in bytes: an answer is one message (maxMessage).
const maxRules = 2 << 20

// ruleTables reads the rules by nft, which has the one complete form of them. A table that goes
// meanwhile is left out. Of several who ask, one is answered after the other: nft reads all rules
// for each, and whoever may look may ask as often as he likes.
func (m *machine) ruleTables(ctx context.Context) ([]ruleTable, error) {
	done, err := turn(ctx, m.rules, "nftables")
	if err != nil {
		return nil, err
	}
	defer done()
	list, err := m.reaper.RunCommand(ctx, supervise.Command{Args: []string{paths.Nft, "list", "tables"}, OwnNamespaces: true})
	if err != nil {
		return nil, err
	}
	all := []ruleTable{}
	left := maxRules
	for _, name := range tableNames(string(list)) {
		t := ruleTable{Table: name, Cut: true}
		if left >= supervise.MaxOutput {
			text, err := m.reaper.RunCommand(ctx, supervise.Command{Args: append([]string{paths.Nft, "list", "table"}, strings.Fields(name)...), OwnNamespaces: true})
			if exit := (*supervise.ExitError)(nil); errors.As(err, &exit) {
				continue
			}
			if err != nil {
				return nil, err
			}
			t.Rules, t.Cut = spaced(string(text)), len(text) >= supervise.MaxOutput
		}
		left -= len(t.Rules)
		all = append(all, t)
	}
	return all, nil
}

// spaced has spaces for tabs, and none at the ends of lines: YAML shows such a text line by line,
// and any other as one long line.
func spaced(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.TrimRight(strings.ReplaceAll(line, "\t", "  "), " \n"))
		out.WriteByte('\n')
	}
	return out.String()
}

// tableNames reads what `nft list tables` writes: "table ip6 kube-proxy", a line each.
func tableNames(list string) []string {
	var names []string
	for line := range strings.Lines(list) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "table" {
			names = append(names, words[1]+" "+words[2])
		}
	}
	return names
}

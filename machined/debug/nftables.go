package debug

import (
	"context"
	"errors"
	"strings"

	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// RuleTable is an nftables table: topic "nftables".
type RuleTable struct {
	Table string `json:"table"` // family and name: "ip kube-proxy"
	Rules string `json:"rules"` // sets, maps and chains, in the form of nft
	// Rules is incomplete: the end of the table is missing, or all of it
	Cut bool `json:"cut,omitempty"`
}

// maxRules bounds the text of all tables, in bytes: an answer is one message (maxMessage).
const maxRules = 2 << 20

// RuleTables reads the rules with nft, because only nft prints them completely. A table that is
// deleted meanwhile is skipped. Concurrent callers are served in sequence: nft reads all rules for
// each call, and a reader can call at any rate.
func (t *Tools) RuleTables(ctx context.Context) ([]RuleTable, error) {
	done, err := limits.Acquire(ctx, t.nftReads, "nftables")
	if err != nil {
		return nil, err
	}
	defer done()
	list, err := t.deps.Run(ctx, supervise.Command{Args: []string{paths.Nft, "list", "tables"}, SeparateStderr: true})
	if err != nil {
		return nil, err
	}
	all := []RuleTable{}
	left := maxRules
	for _, name := range tableNames(string(list)) {
		table := RuleTable{Table: name, Cut: true}
		if left >= supervise.MaxOutput {
			text, err := t.deps.Run(ctx, supervise.Command{Args: append([]string{paths.Nft, "list", "table"}, strings.Fields(name)...), SeparateStderr: true})
			if exit := (*supervise.ExitError)(nil); errors.As(err, &exit) {
				continue
			}
			if err != nil {
				return nil, err
			}
			table.Rules, table.Cut = spaced(string(text)), len(text) >= supervise.MaxOutput
		}
		left -= len(table.Rules)
		all = append(all, table)
	}
	return all, nil
}

// spaced replaces tabs by spaces, and removes spaces at the ends of lines: YAML then prints the
// text line by line, and not as one long line.
func spaced(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.TrimRight(strings.ReplaceAll(line, "\t", "  "), " \n"))
		out.WriteByte('\n')
	}
	return out.String()
}

// tableNames parses the output of `nft list tables`: "table ip6 kube-proxy", one per line.
func tableNames(list string) []string {
	var names []string
	for line := range strings.Lines(list) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "table" {
			names = append(names, words[1]+" "+words[2])
		}
	}
	return names
}

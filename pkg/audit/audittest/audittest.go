// Package audittest reads records of the audit log in tests.
package audittest

import (
	"testing"

	"github.com/orlop-os/orlop/pkg/audit"
)

// Entries verifies the chain of a record and returns its lines.
func Entries(t *testing.T, l *audit.Log, name string) (out []audit.Entry) {
	t.Helper()
	chain := audit.Chain{Record: name}
	err := l.Read(0, func(_ uint64, line []byte) error {
		e, err := chain.Check(line)
		out = append(out, e)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

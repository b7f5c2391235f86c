package activeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/configstore"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// authority returns the certificate of a new CA in PEM.
func authority(t *testing.T) string {
	t.Helper()
	ca, err := pki.NewCA("operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return string(ca.CertPEM())
}

// onMedium returns a configuration of a worker with operator CAs and, if client is not empty, of
// a cluster with this client CA.
func onMedium(t *testing.T, client string, operators ...string) []byte {
	pem := func(text string) string { return fmt.Sprintf("%q\n", text) }
	text := "apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: n1}\nspec:\n  role: worker\n"
	if len(operators) > 0 {
		text += "  trust:\n    operatorCAs:\n"
	}
	for _, ca := range operators {
		text += "    - " + pem(ca)
	}
	if client != "" {
		text += "---\napiVersion: orlop.dev/v1alpha1\nkind: Cluster\nmetadata: {name: c}\nspec:\n  endpoint: https://10.0.0.1:6443\n  pki:\n" +
			"    client:\n      cert: " + pem(client) + "    kubernetes:\n      cert: " + pem(authority(t)) + "    machine:\n      cert: " + pem(authority(t))
	}
	return []byte(text)
}

// seeded returns two values: a manager of a machine without a configuration, which finds the
// documents on a medium, and the lines on the console. owner returns the CAs of the machine's
// operator.
func seeded(t *testing.T, owner func() ([]byte, error), inMemory bool, documents []byte) (*Manager, *[]string) {
	t.Helper()
	var console []string
	m := New(Deps{
		Store:          configstore.Store{Dir: t.TempDir()},
		Embedded:       filepath.Join(t.TempDir(), "none"),
		StorageProblem: func() string { return "" },
		InMemory:       inMemory,
		Event:          func(string, string) {},
		Console:        func(line string) { console = append(console, line) },
		Seed: SeedDeps{
			Find: func(context.Context) (*seed.Document, error) {
				return &seed.Document{Name: "/dev/sdb1:machine.yaml", Text: documents}, nil
			},
			Owner:        owner,
			Check:        func(context.Context, *config.Config) error { return nil },
			MissingLinks: func(network.Config) (missing, there []string, err error) { return nil, nil, nil },
		},
	})
	return m, &console
}

// TestMediumAdmitsNoOperator checks that a claimed machine rejects a medium that would admit
// another operator or omit the machine's own operator. The machine then shows the reason and stores
// no part of the medium. It adopts a medium without such a change.
func TestMediumAdmitsNoOperator(t *testing.T) {
	own, second, other := authority(t), authority(t), authority(t)
	for _, c := range []struct {
		name   string
		owner  string
		unread error // error of reading the operator CAs of the machine
		medium []byte
		says   string // part of the reason of the rejection; empty: the medium is adopted
	}{
		{"no operators", own, nil, onMedium(t, ""), ""},
		{"the own operator", own, nil, onMedium(t, "", own), ""},
		{"the own client CA", own, nil, onMedium(t, own), ""},
		{"an unclaimed machine", "", nil, onMedium(t, second, other), ""},
		{"another operator", own, nil, onMedium(t, "", own, other), "Machine.spec.trust.operatorCAs[1]: cannot add the CA"},
		{"another client CA", own, nil, onMedium(t, other), "Cluster.spec.pki.client.cert: cannot add the CA"},
		{"one of two operators", own + second, nil, onMedium(t, "", own), "Machine.spec.trust.operatorCAs: cannot omit the CA"},
		{"an owner that cannot be read", "", errors.New("input/output error"), onMedium(t, "", other), "input/output error"},
	} {
		for _, inMemory := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in memory %t", c.name, inMemory), func(t *testing.T) {
				m, console := seeded(t, func() ([]byte, error) { return []byte(c.owner), c.unread }, inMemory, c.medium)
				m.AdoptSeed(t.Context())
				now := m.Current()
				if c.says == "" {
					if now.Config == nil || now.Problem != "" || m.HasStored() == inMemory {
						t.Errorf("adopted %t, stored %t: %s", now.Config != nil, m.HasStored(), now.Problem)
					}
					return
				}
				shown := func(line string) bool { return strings.Contains(line, c.says) }
				if !shown(now.Problem) || !slices.ContainsFunc(*console, shown) {
					t.Errorf("problem %q, console %q; expected %q", now.Problem, *console, c.says)
				}
				var files []string
				err := filepath.WalkDir(m.Store().Dir, func(path string, d fs.DirEntry, err error) error {
					if err == nil && !d.IsDir() {
						files = append(files, path)
					}
					return err
				})
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				if now.Config != nil || len(now.Documents) > 0 || len(files) > 0 {
					t.Errorf("rejected, but adopted %t, files %q", now.Config != nil, files)
				}
			})
		}
	}
}

// TestAwaitLinks checks that a configuration on a medium waits for its links, and is rejected
// without them.
func TestAwaitLinks(t *testing.T) {
	next := config.New("n1", config.RoleWorker)
	next.Network.Spec.Links = []config.Link{{Name: "eth0"}}
	looks := 0
	second := func(network.Config) (missing, there []string, err error) {
		if looks++; looks < 2 {
			return []string{"eth0"}, nil, nil
		}
		return nil, []string{"eth0"}, nil
	}
	if err := awaitLinks(t.Context(), next, second, time.Minute); err != nil || looks != 2 {
		t.Errorf("the link appears late: %v, %d reads of the links", err, looks)
	}
	never := func(network.Config) (missing, there []string, err error) {
		return []string{"eth0"}, []string{"eth1"}, nil
	}
	if err := awaitLinks(t.Context(), next, never, time.Millisecond); err == nil || !strings.Contains(err.Error(), "this machine has no link eth0; it has eth1") {
		t.Errorf("the link never appears: %v", err)
	}
	next.Machine.Spec.KernelModules = []string{"mlx5_core"}
	if err := awaitLinks(t.Context(), next, never, time.Minute); err != nil {
		t.Errorf("a module may create the link: %v", err)
	}
}

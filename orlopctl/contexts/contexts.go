// Package contexts holds the file ~/.orlop/config: the known machines, and the credentials for
// each.
package contexts

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/strictyaml"
)

// File is the content of the file ~/.orlop/config, which has mode 0600.
type File struct {
	Current  string             `json:"current,omitempty"`
	Contexts map[string]Context `json:"contexts,omitempty"`
}

// Context holds the address and the credentials of a machine. Certificates and keys are in PEM.
type Context struct {
	Endpoint string `json:"endpoint"` // host[:port]
	// Fallback are other machines of the same cluster. The tool tries them in this order until a
	// machine admits the caller.
	Fallback []string `json:"fallback,omitempty"`
	// ServerName is the name that the machine's certificate must contain.
	ServerName  string `json:"serverName,omitempty"`
	CA          string `json:"ca,omitempty"`          // the cluster's machine CA
	Fingerprint string `json:"fingerprint,omitempty"` // alternative to the CA
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	// Operator is the directory of the operator CA, which can sign Cert again if the key of the CA
	// is in that directory. It is "" if the directory is unknown.
	Operator string `json:"operator,omitempty"`
	// RenewAfter is the time from which the tool renews Cert. It is zero if no machine has issued
	// Cert.
	RenewAfter time.Time `json:"renewAfter,omitzero"`
}

// Path returns the path of the file: $ORLOP_CONFIG or ~/.orlop/config.
func Path() (string, error) {
	if path := os.Getenv("ORLOP_CONFIG"); path != "" {
		return path, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("contexts: cannot find your home directory: %w; set ORLOP_CONFIG to a file", err)
	}
	return filepath.Join(home, ".orlop", "config"), nil
}

// Load reads the file. It returns a File without contexts if the file does not exist.
func Load() (*File, error) {
	path, err := Path()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &File{Contexts: map[string]Context{}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("contexts: cannot read: %w", err)
	}
	file := &File{}
	if err := strictyaml.Decode(text, file); err != nil {
		return nil, exit.Usagef("contexts: cannot use %s: %w", path, err)
	}
	if file.Contexts == nil {
		file.Contexts = map[string]Context{}
	}
	return file, nil
}

func (f *File) save() error {
	path, err := Path()
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(f)
	if err != nil {
		return fmt.Errorf("contexts: cannot format: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("contexts: cannot create the directory: %w", err)
	}
	return secretfile.Write(path, text, true)
}

// Client converts a context into an endpoint of the client. It returns an error that names the
// first missing or wrong value.
func (c Context) Client() (client.Endpoint, error) {
	missing := func(what, hint string) (client.Endpoint, error) {
		return client.Endpoint{}, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("machine: cannot connect: %s", what), Hint: hint}
	}
	switch {
	case c.Endpoint == "":
		return missing("there is no endpoint and no current context", "pass --endpoint, or store a context with `orlopctl config set NAME`")
	case c.Cert == "" || c.Key == "":
		return missing("there is no client certificate", "pass --cert and --key; `orlopctl gen operator` makes them")
	case c.CA == "" && c.Fingerprint == "":
		return missing("there is no CA or fingerprint to verify the machine", "pass --ca (the cluster's machine CA), or --fingerprint from the machine's console")
	}
	if len(c.Fallback) > 0 && (c.CA == "" || c.ServerName != "") {
		return missing("there are several endpoints, but the fingerprint or the name of only one machine", "pass --ca (the cluster's machine CA), and no --server-name; the certificate of each machine holds its own address")
	}
	leaf, err := pki.ParseLeaf([]byte(c.Cert), []byte(c.Key))
	if err != nil {
		return client.Endpoint{}, &exit.Error{Code: exit.Usage, Err: err, Hint: "check --cert and --key"}
	}
	e := client.Endpoint{
		Address: c.Endpoint, Fallback: c.Fallback, ServerName: c.ServerName, Fingerprint: c.Fingerprint,
		Cert: tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key, Leaf: leaf.Cert},
	}
	if c.Fingerprint != "" {
		if _, err := pki.ParseFingerprint(c.Fingerprint); err != nil {
			return client.Endpoint{}, &exit.Error{Code: exit.Usage, Err: err}
		}
		return e, nil
	}
	cas, err := pki.ParseCerts([]byte(c.CA))
	if err != nil {
		return client.Endpoint{}, &exit.Error{Code: exit.Usage, Err: err, Hint: "check --ca"}
	}
	e.CA = x509.NewCertPool()
	for _, ca := range cas {
		e.CA.AddCert(ca)
	}
	return e, nil
}

// Forget removes a context. If it is the current context, there is no current context afterwards.
func (f *File) Forget(name string) {
	delete(f.Contexts, name)
	if f.Current == name {
		f.Current = ""
	}
}

// lockTimeout bounds the wait for a change by another orlopctl. A change only reads and writes a
// small file.
const lockTimeout = 10 * time.Second

// Change reads the contexts, calls change, and writes the contexts. It holds a lock meanwhile,
// because concurrent changes of several processes would overwrite each other.
func Change(change func(*File) error) error {
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	file, err := Load()
	if err != nil {
		return err
	}
	if err := change(file); err != nil {
		return err
	}
	return file.save()
}

// lock locks a file beside the file of contexts. It cannot lock the file of contexts itself,
// because each change replaces that file. The kernel releases the lock when the process ends.
func lock() (unlock func(), err error) {
	path, err := Path()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("contexts: cannot create the directory: %w", err)
	}
	path += ".lock"
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("contexts: cannot lock: %w", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(int(file.Fd()), unix.LOCK_EX) }()
	select {
	case err = <-locked:
	// The file stays open, because the goroutine still waits for the lock. This process ends soon.
	case <-time.After(lockTimeout):
		return nil, &exit.Error{Code: exit.Failure, Err: fmt.Errorf("contexts: cannot lock %s: another orlopctl holds it since %s", path, lockTimeout), Hint: "wait for the other orlopctl or end it, and retry"}
	}
	if err != nil {
		_ = file.Close() // nothing was written to it
		return nil, fmt.Errorf("contexts: cannot lock %s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil // releases the lock
}

// Names returns the names of the contexts in alphabetical order.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.Contexts)) }

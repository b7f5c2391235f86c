package connect

import (
	"encoding/pem"
	"os"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/pkg/strictyaml"
)

// Flags are the flags that select a machine and the credentials.
type Flags struct {
	Context, ServerName        string
	Endpoints, Nodes           []string
	Cert, Key, CA, Fingerprint string
	Timeout                    time.Duration
	Approval                   string
}

// Register adds the flags to a command.
func (f *Flags) Register(set *pflag.FlagSet) {
	set.StringVar(&f.Context, "context", "", "use this context instead of the current context")
	set.StringSliceVarP(&f.Endpoints, "endpoint", "e", nil, "address of the machine, host[:port]; of several (a,b,c), the first machine that admits you is used")
	set.StringSliceVarP(&f.Nodes, "nodes", "n", nil, "run the command on each of these machines of the cluster (IP addresses: a,b,c), through the machine of the endpoint")
	set.StringVar(&f.ServerName, "server-name", "", "name that the machine's certificate must contain (default: the host of the endpoint)")
	set.StringVar(&f.Cert, "cert", "", "file with your client certificate")
	set.StringVar(&f.Key, "key", "", "file with the key of your client certificate")
	set.StringVar(&f.CA, "ca", "", "file with the cluster's machine CA, or the cluster's file of secrets, which contains this CA")
	set.StringVar(&f.Fingerprint, "fingerprint", "", "verify the machine by the fingerprint on its console (sha256:…)")
	set.StringVar(&f.Approval, "approval", "", "file with the approval of the call by two operators (orlopctl approval)")
	set.DurationVar(&f.Timeout, "timeout", 0, "time limit of the command (default: 30s; more for slow commands)")
	flags.Positive(set, "timeout", &f.Timeout)
}

// DurationOf returns the value of a flag for a request. It returns nil for zero, and the machine
// then uses its default.
func DurationOf(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// Overlay returns the context with the values of the flags in place of its own values. It returns
// an error if a file cannot be read or two flags contradict each other.
func (conn *Connector) Overlay(c contexts.Context) (contexts.Context, error) {
	f := conn.Flags
	if len(f.Endpoints) > 0 {
		c.Endpoint, c.Fallback = f.Endpoints[0], f.Endpoints[1:]
	}
	if len(c.Fallback) > 0 {
		c.ServerName = "" // a name belongs to a single machine
	}
	if f.ServerName != "" {
		c.ServerName = f.ServerName
	}
	if f.Fingerprint != "" {
		c.Fingerprint, c.CA = f.Fingerprint, ""
	}
	for _, file := range []struct {
		flag, path string
		to         *string
	}{{"--cert", f.Cert, &c.Cert}, {"--key", f.Key, &c.Key}, {"--ca", f.CA, &c.CA}} {
		if file.path == "" {
			continue
		}
		text, err := os.ReadFile(file.path)
		if err != nil {
			return c, exit.Usagef("%s: cannot read: %w", file.flag, err)
		}
		*file.to = string(text)
	}
	if block, _ := pem.Decode([]byte(c.CA)); f.CA != "" && block == nil {
		s := new(gen.Secrets)
		if err := strictyaml.Decode([]byte(c.CA), s); err != nil {
			return c, exit.Usagef("--ca: %s is neither a certificate in PEM nor a file of secrets: %w", f.CA, err)
		}
		c.CA = s.Machine.Cert + s.Next["machine"].Cert
	}
	if f.Cert != "" || f.Key != "" {
		c.Operator, c.RenewAfter = "", time.Time{} // they belong to the former certificate
	}
	if f.CA != "" {
		if f.Fingerprint != "" {
			return c, exit.Usagef("--ca and --fingerprint: cannot use both: each determines how the machine is verified")
		}
		c.Fingerprint = ""
	}
	return c, nil
}

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/config"
)

func genConfigCommand(ios *iostreams.Streams) *cobra.Command {
	g := generated{}
	var secretsFile, out, dir string
	var operators, machines []string
	var marks nodeFlags
	var force bool
	c := &cobra.Command{
		Use:   "config [NAME] ENDPOINT",
		Short: "Make the configurations of a cluster's control-plane machines (Machine, Cluster and Network documents)",
		Long: "Make the configuration of a control-plane machine called NAME, the only one of a cluster whose Kubernetes API is at ENDPOINT\n" +
			"(https://host:6443). Or, without NAME, those of all control-plane machines of a cluster: --control-plane NAME=ADDRESS names each, the\n" +
			"one that begins first, and each gets a file NAME.yaml in --out-dir. Nothing is written if anything is wrong.\n\n" +
			"Every default is written out, so that a file shows what can be changed. The secrets are the same in all of them: keep the files where you\n" +
			"keep the secrets. A machine that comes later, or in the place of a lost one, joins with its document alone. Workers need a ticket of the\n" +
			"cluster that runs: `orlopctl nodes add` makes their configurations.",
		Example: "  orlopctl gen secrets\n  orlopctl gen config m1 https://10.0.0.11:6443 --out m1.yaml\n" +
			"  orlopctl gen config https://10.0.0.9:6443 --virtual-address 10.0.0.9 --control-plane m1=10.0.0.11 --control-plane m2=10.0.0.12 --control-plane m3=10.0.0.13",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			g.endpoint = args[len(args)-1]
			names, err := g.machines(args[:len(args)-1], machines)
			if err != nil {
				return err
			}
			several := len(args) == 1
			switch {
			case several && c.Flags().Changed("out"):
				return exit.Usagef("--out: cannot be used for several machines: use --out-dir")
			case !several && c.Flags().Changed("out-dir"):
				return exit.Usagef("--out-dir: cannot be used for one machine: use --out")
			}
			if g.secrets, err = readSecrets(secretsFile); err != nil {
				return err
			}
			for _, step := range g.secrets.underWay() {
				ios.Errorln("warning: " + secretsFile + ": " + step + "; finish that first, or call it again after the machine has joined the cluster: otherwise it would issue certificates and encrypt with a CA and a key that the others drop")
			}
			if g.operators, err = readCAs(operators); err != nil {
				return err
			}
			if g.node, err = marks.node(); err != nil {
				return err
			}
			var files []secretfile.File
			for _, name := range names {
				g.name = name
				text, err := g.documents()
				if err != nil {
					return err
				}
				path := out
				if several {
					path = filepath.Join(dir, name+".yaml")
				}
				files = append(files, secretfile.File{Path: path, Content: text})
			}
			if !several && out == "-" {
				if _, terminal := ios.Terminal(); terminal && !c.Flags().Changed("out") {
					return exit.Usagef("--out: the configuration contains the cluster's keys, and would be shown on the screen: name a file, or use -")
				}
				ios.Printf("%s", files[0].Content)
				return nil
			}
			if several {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					return fmt.Errorf("--out-dir: cannot create the directory: %w", err)
				}
			}
			if err := secretfile.WriteAll(files, force); err != nil {
				return err
			}
			for _, f := range files {
				ios.Println("wrote " + f.Path)
			}
			if several {
				ios.Printf("next: apply each to its machine, in any order (`orlopctl apply-config -f %s -e %s --fingerprint sha256:…`)\n", files[0].Path, g.controlPlanes[0])
			} else {
				ios.Println("next: apply it to the machine (`orlopctl apply-config`)")
			}
			ios.Println("workers: when the cluster is healthy, `orlopctl nodes add NAME --out NAME.yaml` makes a worker's configuration, with a ticket")
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&secretsFile, "secrets", "secrets.yaml", "the cluster's secrets")
	f.StringVar(&g.cluster, "cluster-name", "orlop", "name of the cluster")
	f.StringArrayVar(&g.sans, "san", nil, "additional name or address of the Kubernetes API; repeatable")
	f.StringArrayVar(&machines, "control-plane", nil, "name and address of a control-plane machine, as NAME=ADDRESS; repeat it for each machine, the bootstrapping machine first")
	f.StringArrayVar(&g.virtual, "virtual-address", nil, "virtual IP address of the Kubernetes API, held by one control-plane machine at a time; at most one of each family")
	f.StringArrayVar(&operators, "operator-ca", nil, "file with an operator CA to trust instead of the image's; repeatable")
	f.StringVar(&out, "out", "-", "output file for one machine; - for the standard output")
	f.StringVar(&dir, "out-dir", ".", "output directory for several machines")
	f.BoolVar(&force, "force", false, "replace existing files")
	marks.register(f)
	return c
}

// nodeFlags are the labels and taints of a command line.
type nodeFlags struct{ labels, taints []string }

func (n *nodeFlags) register(f *pflag.FlagSet) {
	f.StringArrayVar(&n.labels, "label", nil, "label of the Kubernetes node, for example topology.kubernetes.io/zone=east; repeatable")
	f.StringArrayVar(&n.taints, "taint", nil, "taint of the Kubernetes node, for example dedicated=gpu:NoSchedule; repeatable")
}

// node parses the labels and taints.
func (n nodeFlags) node() (config.Node, error) {
	out := config.Node{Labels: map[string]string{}}
	for _, text := range n.labels {
		key, value, err := config.ParseLabel(text)
		if err != nil {
			return out, exit.Usagef("--label %w", err)
		}
		if _, twice := out.Labels[key]; twice {
			return out, exit.Usagef("--label %s: cannot use: the key is duplicate", text)
		}
		out.Labels[key] = value
	}
	for _, text := range n.taints {
		taint, err := config.ParseTaint(text)
		if err != nil {
			return out, exit.Usagef("--taint %w", err)
		}
		out.Taints = append(out.Taints, taint)
	}
	return out, nil
}

// readCAs reads the files of operator CAs.
func readCAs(files []string) ([]string, error) {
	var all []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, exit.Usagef("--operator-ca: cannot read: %w", err)
		}
		all = append(all, string(text))
	}
	return all, nil
}

// generated is the input of a generated configuration.
type generated struct {
	name, cluster string
	endpoint      string // https://host:port of the Kubernetes API
	secrets       *secrets
	operators     []string // PEM
	sans          []string // further names of the Kubernetes API
	controlPlanes []string // addresses; empty with a single machine
	virtual       []string // virtual IP addresses of the Kubernetes API
	node          config.Node
}

// machines returns the names of the machines to configure: the single name, or the name of each
// NAME=ADDRESS. It stores the addresses in g.
func (g *generated) machines(alone, each []string) (names []string, err error) {
	switch {
	case len(alone) > 0 && len(each) > 0:
		return nil, exit.Usagef("--control-plane: cannot be used with the name of one machine: it names each machine, so omit %s", alone[0])
	case len(alone) > 0:
		return alone, nil
	case len(each) == 0:
		return nil, exit.Usagef("configuration: cannot make: expected the machine's name before the endpoint, or --control-plane NAME=ADDRESS for each machine")
	}
	for _, text := range each {
		name, address, found := strings.Cut(text, "=")
		if !found || name == "" || address == "" {
			return nil, exit.Usagef("--control-plane %s: cannot use: expected NAME=ADDRESS, for example m1=10.0.0.11", text)
		}
		if slices.Contains(names, name) {
			return nil, exit.Usagef("--control-plane %s: cannot use: the name is duplicate", text)
		}
		names, g.controlPlanes = append(names, name), append(g.controlPlanes, address)
	}
	return names, nil
}

// addresses parses the values of a flag.
func addresses(flag string, texts []string) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, exit.Usagef("%s %s: cannot use: expected an IP address", flag, text)
		}
		all = append(all, a)
	}
	return all, nil
}

// documents makes the configuration and validates it like the machine.
func (g generated) documents() ([]byte, error) {
	endpoint, err := config.ParseEndpoint(g.endpoint)
	if err != nil {
		return nil, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("endpoint: cannot use: %w", err)}
	}
	authorities, key, err := g.secrets.pki()
	if err != nil {
		return nil, err
	}
	made := config.New(g.name, config.RoleControlPlane).WithCluster(g.cluster, endpoint, authorities, key).WithNode(g.node)
	made.Cluster.Spec.AcceptedEncryptionKeys = g.secrets.acceptedKeys()
	made.Cluster.Spec.Kubernetes.APIServer.ExtraSANs = g.sans
	if made.Cluster.Spec.ControlPlanes, err = addresses("--control-plane", g.controlPlanes); err != nil {
		return nil, err
	}
	if made.Cluster.Spec.VirtualAddresses, err = addresses("--virtual-address", g.virtual); err != nil {
		return nil, err
	}
	var operators []config.Certificate
	for _, text := range g.operators {
		ca, err := config.ParseCertificate(text)
		if err != nil {
			return nil, exit.Usagef("--operator-ca: cannot use: %w", err)
		}
		operators = append(operators, ca)
	}
	if len(operators) > 0 {
		made = made.WithOperatorCAs(operators...)
	}
	if err := validateFlags(made); err != nil {
		return nil, err
	}
	return config.Marshal(made), nil
}

// validateFlags validates a configuration that was made from flags.
func validateFlags(c *config.Config) error {
	if err := config.Check(c).Err(); err != nil {
		return &exit.Error{Code: exit.Usage, Err: errors.Join(errors.New("the flags do not give a valid configuration"), err)}
	}
	return nil
}

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/config"
)

// genConfig holds the flags of `gen config`, which makes the configurations of the control-plane
// machines of a cluster.
type genConfig struct {
	config              gen.Config
	secretsFile         string
	machines, operators []string // NAME=ADDRESS of each machine, and files of operator CAs
	marks               nodeFlags
	out, dir            string
	force               bool
}

func genConfigCommand(ios *iostreams.Streams) *cobra.Command {
	var g genConfig
	c := &cobra.Command{
		Use:   "config [NAME] ENDPOINT",
		Short: "Make the configurations of a cluster's control-plane machines (Machine, Cluster and Network documents)",
		Long: "With NAME, make the configuration of the only control-plane machine of a cluster whose Kubernetes API is at ENDPOINT\n" +
			"(https://host:6443). Without NAME, make the configurations of all control-plane machines of a cluster: repeat\n" +
			"--control-plane NAME=ADDRESS for each machine, the machine that bootstraps etcd first. Each machine gets a file NAME.yaml in --out-dir.\n" +
			"If anything is wrong, the command writes no file.\n\n" +
			"The files contain every default, to show what can be changed. All files contain the cluster's secrets: protect them like the file of\n" +
			"--secrets. A control-plane machine that is added or replaced later joins the cluster as soon as it has its configuration. A worker also\n" +
			"needs a ticket of the running cluster: `orlopctl nodes add` makes the configuration of a worker, with the ticket.",
		Example: "  orlopctl gen secrets\n  orlopctl gen config m1 https://10.0.0.11:6443 --out m1.yaml\n" +
			"  orlopctl gen config https://10.0.0.9:6443 --virtual-address 10.0.0.9 --control-plane m1=10.0.0.11 --control-plane m2=10.0.0.12 --control-plane m3=10.0.0.13",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			g.config.Endpoint = args[len(args)-1]
			names, err := g.config.Machines(args[:len(args)-1], g.machines)
			if err != nil {
				return err
			}
			several, named := len(args) == 1, c.Flags().Changed("out")
			switch {
			case several && named:
				return exit.Usagef("--out: cannot be used for several machines: use --out-dir")
			case !several && c.Flags().Changed("out-dir"):
				return exit.Usagef("--out-dir: cannot be used for one machine: use --out")
			}
			if err := g.readInput(ios); err != nil {
				return err
			}
			files, err := g.files(names, several)
			if err != nil {
				return err
			}
			if !several && g.out == "-" {
				if _, terminal := ios.Terminal(); terminal && !named {
					return exit.Usagef("--out: the configuration contains the cluster's keys, and would be shown on the screen: name a file, or use -")
				}
				ios.Printf("%s", files[0].Content)
				return nil
			}
			return g.write(ios, files, several)
		},
	}
	f := c.Flags()
	f.StringVar(&g.secretsFile, "secrets", "secrets.yaml", "file with the cluster's secrets (orlopctl gen secrets)")
	f.StringVar(&g.config.Cluster, "cluster-name", "orlop", "name of the cluster")
	f.StringArrayVar(&g.config.SANs, "san", nil, "additional name or address of the Kubernetes API; repeatable")
	f.StringArrayVar(&g.machines, "control-plane", nil, "name and address of a control-plane machine, as NAME=ADDRESS; repeat it for each machine, the bootstrapping machine first")
	f.StringArrayVar(&g.config.VirtualAddresses, "virtual-address", nil, "virtual IP address of the Kubernetes API, held by one control-plane machine at a time; at most one of each family")
	f.StringArrayVar(&g.operators, "operator-ca", nil, "file with an operator CA that the machines trust instead of the CA in their image; repeatable")
	f.StringVar(&g.out, "out", "-", "output file for one machine; - for the standard output")
	f.StringVar(&g.dir, "out-dir", ".", "output directory for several machines")
	f.BoolVar(&g.force, "force", false, "replace existing files")
	g.marks.register(f)
	return c
}

// readInput reads the files that the flags name, and warns about unfinished rotations.
func (g *genConfig) readInput(ios *iostreams.Streams) (err error) {
	if g.config.Secrets, err = gen.ReadSecrets(g.secretsFile); err != nil {
		return err
	}
	for _, step := range g.config.Secrets.UnfinishedRotations() {
		ios.Errorln("warning: " + g.secretsFile + ": " + step + "; finish that first, or call it again after the machine has joined the cluster: otherwise it would issue certificates and encrypt with a CA and a key that the others drop")
	}
	if g.config.Operators, err = readCAs(g.operators); err != nil {
		return err
	}
	g.config.Node, err = g.marks.node()
	return err
}

// files makes the configurations of the machines with these names. It returns each with the path of
// its file.
func (g *genConfig) files(names []string, several bool) ([]secretfile.File, error) {
	var files []secretfile.File
	for _, name := range names {
		g.config.Name = name
		text, err := g.config.Documents()
		if err != nil {
			return nil, err
		}
		path := g.out
		if several {
			path = filepath.Join(g.dir, name+".yaml")
		}
		files = append(files, secretfile.File{Path: path, Content: text})
	}
	return files, nil
}

// write writes the files and prints the next commands.
func (g *genConfig) write(ios *iostreams.Streams, files []secretfile.File, several bool) error {
	if several {
		if err := os.MkdirAll(g.dir, 0o700); err != nil {
			return fmt.Errorf("--out-dir: cannot create the directory: %w", err)
		}
	}
	if err := secretfile.WriteAll(files, g.force); err != nil {
		return err
	}
	for _, f := range files {
		ios.Println("wrote " + f.Path)
	}
	if several {
		ios.Printf("next: apply each to its machine, in any order (`orlopctl apply-config -f %s -e %s --fingerprint sha256:…`)\n", files[0].Path, g.config.ControlPlanes[0])
	} else {
		ios.Println("next: apply it to the machine (`orlopctl apply-config`)")
	}
	ios.Println("workers: when the cluster is healthy, `orlopctl nodes add NAME --out NAME.yaml` makes a worker's configuration, with a ticket")
	return nil
}

// nodeFlags are the flags for the labels and taints of a node.
type nodeFlags struct{ labels, taints []string }

func (n *nodeFlags) register(f *pflag.FlagSet) {
	f.StringArrayVar(&n.labels, "label", nil, "label of the Kubernetes node, for example topology.kubernetes.io/zone=east; repeatable")
	f.StringArrayVar(&n.taints, "taint", nil, "taint of the Kubernetes node, for example dedicated=gpu:NoSchedule; repeatable")
}

// node parses the labels and taints. It returns an error for two labels with the same key.
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

// readCAs returns the contents of the files of operator CAs.
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

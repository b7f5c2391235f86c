package integration

import (
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// clusterVerb creates a cluster of one machine, as the story life does, and imports the image for
// pods.
func (s *story) clusterVerb(ts *testscript.TestScript, neg bool, args []string) {
	const usage = "cluster NAME [KEY=VALUE… | KIND.FIELD YAML]"
	need(ts, neg, args, 1, -1, usage)
	name, orlopctl := args[0], s.program("orlopctl")
	var field []string
	if len(args) > 1 && !strings.Contains(args[1], "=") {
		need(ts, neg, args, 3, 3, usage)
		args, field = args[:1], args[1:]
	}
	s.machineVerb(ts, false, args)
	s.waitConsole(ts, name, "orlop: machine identity sha256:[0-9a-f]{64}", 90*time.Second)
	s.waitConsole(ts, name, "orlop: API answers on", time.Minute)
	s.fingerprintVerb(ts, false, []string{name})
	for _, words := range []string{
		"gen secrets --out secrets.yaml",
		"gen config " + name + " https://" + ts.Getenv("IP_"+name) + ":6443 --cluster-name story --secrets secrets.yaml --out machine.yaml",
	} {
		orlopctl(ts, false, strings.Fields(words))
	}
	if field != nil {
		s.setVerb(ts, false, append([]string{"machine.yaml"}, field...))
	}
	orlopctl(ts, false, []string{"apply-config", "-f", "machine.yaml"})
	s.trustVerb(ts, false, []string{name, "secrets.yaml"})
	s.imageVerb(ts, false, []string{"testpod.tar"})
	for _, words := range []string{
		"health --timeout 5m",
		"kubeconfig --server https://127.0.0.1:" + ts.Getenv("PORT_"+name+"_6443") + " --out kubeconfig",
		"image import testpod.tar",
	} {
		orlopctl(ts, false, strings.Fields(words))
	}
}

package nodeplan

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/paths"
)

// containerdConfig returns containerd's configuration file (version 3, containerd 2.x). It depends
// on the parameters only, not on the machine.
//
// The file disables the snapshotters for file systems that the kernel of the image lacks, unused
// kinds of plugins, and tracing. sync_fs makes containerd flush the files of a layer to the disk
// before it marks the layer as unpacked. Without sync_fs, a power cut can leave incomplete programs
// in a layer, and containerd would run them. Only the older implementation of image pulls
// (use_local_image_pull) has this option.
//
// containerd serves the streams of containers (exec, attach, port-forward) on loopback, where only
// the kubelet uses them. CNI plugins come from the verified root. If an external pod network
// connects the pods (external), it installs its own plugins in a directory that containerd searches
// first.
//
// With Machine.spec.metrics (metrics), containerd serves its metrics on loopback.
//
// The active extensions add runtime handlers and a directory of CDI specifications.
func containerdConfig(pauseImage string, external, metrics bool, active []extension.Statement) []byte {
	plugins := strconv.Quote(paths.CNIPlugins)
	if external {
		plugins = strconv.Quote(paths.ExternalCNIPlugins) + ", " + plugins
	}
	served := ""
	if metrics {
		served = fmt.Sprintf("\n[plugins.'io.containerd.server.v1.metrics']\n  address = \"127.0.0.1:%d\"\n", paths.PortContainerd)
	}
	return fmt.Appendf(nil, `version = 3
root = %q
state = "/run/containerd"
oom_score = -999
disabled_plugins = [
  "io.containerd.internal.v1.tracing",
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = %q

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  use_local_image_pull = true
  image_pull_with_sync_fs = true
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = %q
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %q

[plugins.'io.containerd.cri.v1.runtime']
  enable_selinux = false
%s  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = %q
        SystemdCgroup = false
%s  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [%s]
    conf_dir = %q

[plugins.'io.containerd.grpc.v1.cri']
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

[plugins.'io.containerd.service.v1.diff-service']
  sync_fs = true
%s`, paths.ContainerdData, paths.ContainerdSocket, paths.ContainerdHosts, pauseImage, cdiDirs(active), paths.Runc, runtimes(active), plugins, paths.CNIConfig, served)
}

// cdiDirs returns the configuration line with the directories of CDI specifications: containerd's
// two default directories, which device plugins use, and the directory of extensions. It returns an
// empty string if no active extension has a CDI specification, because the defaults then apply.
func cdiDirs(active []extension.Statement) string {
	for _, s := range active {
		if s.HasCDI() {
			return fmt.Sprintf("  cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\", %q]\n", extension.CDIDir)
		}
	}
	return ""
}

// runtimes returns the TOML tables of the runtime handlers that the active extensions add.
func runtimes(active []extension.Statement) string {
	var b strings.Builder
	for _, s := range active {
		for _, r := range s.Runtimes {
			table := "plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes." + r.Handler
			fmt.Fprintf(&b, "    [%s]\n      runtime_type = %q\n", table, r.Type)
			if r.Config != "" {
				fmt.Fprintf(&b, "      [%s.options]\n        TypeUrl = %q\n        ConfigPath = %q\n", table, r.Type+".options", r.Config)
			}
		}
	}
	return b.String()
}

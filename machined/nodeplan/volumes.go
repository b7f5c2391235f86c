package nodeplan

import (
	"slices"
	"strings"

	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Volumes returns the volumes of the machine that the configuration c describes. The result is
// empty if c is nil.
func Volumes(c *config.Config) (out volumes.Config) {
	if c == nil {
		return out
	}
	for _, v := range c.Volumes {
		one := volumes.Volume{Name: v.Metadata.Name, Disk: v.Spec.Disk, Size: uint64(v.Spec.Size), Use: v.Spec.Use, Flags: mount.NoSuid | mount.NoDev | mount.NoAtime}
		if v.Spec.Has(config.OptionReadOnly) {
			one.Flags |= mount.ReadOnly
		}
		if v.Spec.Has(config.OptionNoExec) {
			one.Flags |= mount.NoExec
		}
		switch {
		case v.Spec.Use == config.UseSwap:
			one.Swap = volumes.Swap{Discard: v.Spec.Has(config.OptionDiscard), ZswapPercent: v.Spec.ZswapPercent}
		case v.Spec.Has(config.OptionDiscard):
			one.Data = "discard"
		}
		out.Volumes = append(out.Volumes, one)
	}
	return out
}

// localVolumes returns the settings of the local PersistentVolumes of a node, with its pools sorted
// by name.
func localVolumes(c *config.Config) nodespec.LocalVolumes {
	local := c.Cluster.Spec.LocalVolumes
	out := nodespec.LocalVolumes{Disabled: !local.Enabled, Reserve: int64(local.Reserve)}
	for _, v := range c.Volumes {
		switch v.Spec.Use {
		case config.UseStorageClass:
			out.Pools = append(out.Pools, nodespec.VolumePool{Name: v.Metadata.Name, Dir: volumes.ClassDir(v.Metadata.Name)})
		case config.UseVolumes:
			out.Volume = v.Metadata.Name
		}
	}
	slices.SortFunc(out.Pools, func(a, b nodespec.VolumePool) int { return strings.Compare(a.Name, b.Name) })
	return out
}

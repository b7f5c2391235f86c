package install

import (
	"context"
	"errors"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec/diskmatch"
)

// CheckMatch rejects a configuration with an expression of the disk selector that cannot be
// evaluated.
func (m *Manager) CheckMatch(ctx context.Context, c *config.Config) error {
	if c.Machine.Spec.Install == nil || c.Machine.Spec.Install.Disk.Match == "" {
		return nil
	}
	_, err := diskmatch.Evaluate(ctx, m.deps.Command, c.Machine.Spec.Install.Disk.Match, nil)
	if e := (*diskmatch.ExpressionError)(nil); errors.As(err, &e) {
		return config.Problems{e.Problem(c, config.MatchField)}
	}
	return err
}

// hardware returns the properties that a selector can name.
func (d Disk) hardware() diskmatch.Disk {
	return diskmatch.Disk{
		Path: d.Path, Size: int64(d.Size), SectorSize: int64(d.SectorSize), Model: d.Model, Serial: d.Serial, WWID: d.WWID, Bus: d.Bus,
		Transport: d.Transport, Rotational: d.Rotational, ReadOnly: d.ReadOnly,
	}
}

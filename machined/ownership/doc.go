// Package ownership determines the operators of a machine, and pairs an unclaimed machine with its
// operator.
//
// The operators are the CAs in the configuration, else the CA in the image, else the CA of the
// pairing. An unclaimed machine shows a pairing code on its console (pkg/admission/pairing,
// docs/decisions/0005-first-contact.md). The code changes at each boot and disappears when an
// operator claims the machine.
//
// The package stores the CA of the pairing, on STATE or in memory, and holds the code. It does not
// authorize calls and does not write the files of apid: machined passes the operators to apid
// (Deps.Activate).
package ownership

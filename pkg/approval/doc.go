// Package approval has the document by which two operators approve a call together
// (docs/decisions/0123-two-person-approval.md). It makes, signs, describes and verifies approvals.
//
// An approval is a text file. It begins with a Request in JSON. Each approver adds a signature
// with an own key. The rule of the machine lists these keys, so a client certificate that an admin
// issues for another name is of no use.
//
// The package only computes: it reads no file, opens no connection and knows no method. The machine
// stores the used approvals (Uses) and supplies the time.
package approval
